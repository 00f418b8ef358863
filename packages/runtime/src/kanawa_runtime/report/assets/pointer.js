// Shows the values under the pointer; the page is complete without it.
const tip=document.getElementById('tip');
document.querySelectorAll('svg.plot').forEach(svg=>{
 const plot=JSON.parse(svg.dataset.plot),[low,high,start,end]=plot.x,cross=svg.querySelector('.cross');
 svg.addEventListener('pointermove',event=>{
  const box=svg.getBoundingClientRect(),at=(event.clientX-box.left)/box.width*svg.viewBox.baseVal.width;
  const x=low+(at-start)/(end-start)*(high-low);
  const near=plot.series.map(s=>[s,s.points.reduce((a,b)=>Math.abs(b[0]-x)<Math.abs(a[0]-x)?b:a)]);
  const first=near.reduce((a,b)=>Math.abs(b[1][0]-x)<Math.abs(a[1][0]-x)?b:a)[1][0];
  const place=start+(first-low)/(high-low||1)*(end-start);
  cross.setAttribute('x1',place);cross.setAttribute('x2',place);cross.setAttribute('visibility','visible');
  tip.replaceChildren();
  near.forEach(([s,p])=>{const row=tip.appendChild(document.createElement('div')),dot=row.appendChild(document.createElement('i'));
   dot.style.background='var(--c'+s.colour+')';row.append(s.name+': '+p[1]+' at '+p[0])});
  tip.style.display='block';
  tip.style.left=Math.min(event.clientX+16,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=event.clientY+16+'px'});
 svg.addEventListener('pointerleave',()=>{tip.style.display='none';cross.setAttribute('visibility','hidden')})});
